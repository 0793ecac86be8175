"""Every method there is. A new one is a file with a `Method` in it and a line here (docs/new-method.md).

Free of torch: the API validates specs with these classes.
"""

from __future__ import annotations

from trainer.methods.bgrl import Bgrl
from trainer.methods.grace import Grace
from trainer.methods.grace_plus import GracePlus
from trainer.methods.grape import Grape
from trainer.methods.homogcl import HomoGcl
from trainer.methods.interface import Method
from trainer.methods.localgcl import LocalGcl
from trainer.methods.mvgrl import Mvgrl
from trainer.methods.nml import NegativeMetricLearning
from trainer.methods.phases import Phases
from trainer.methods.progcl import ProGcl
from trainer.methods.references import FastRp, Features, Sgc, Untrained

METHODS: tuple[type[Method], ...] = (
    NegativeMetricLearning,
    Bgrl, Grace, GracePlus, Grape, HomoGcl, LocalGcl, Mvgrl, Phases, ProGcl,
    Features, Sgc, Untrained, FastRp,
)  # fmt: skip

BY_NAME: dict[str, type[Method]] = {method.model_fields["name"].default: method for method in METHODS}
