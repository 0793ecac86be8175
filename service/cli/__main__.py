"""`python -m service.cli` is `nml`, also where that is not on the path."""

from service.cli import main

main()
