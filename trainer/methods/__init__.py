"""Every method there is. A new one is a file with a `Method` in it and a line here (docs/new-method.md).

Free of torch: the API validates specs with these classes.
"""

from __future__ import annotations

from trainer.methods.grape import Grape
from trainer.methods.homogcl import HomoGcl
from trainer.methods.interface import Method
from trainer.methods.nml import NegativeMetricLearning
from trainer.methods.references import Features, Sgc, Untrained

METHODS: tuple[type[Method], ...] = (
    NegativeMetricLearning,
    HomoGcl,
    Grape,
    Features, Sgc, Untrained,
)  # fmt: skip

BY_NAME: dict[str, type[Method]] = {method.model_fields["name"].default: method for method in METHODS}
