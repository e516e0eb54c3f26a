"""Run `python -m ncclean_cli`, which launchers such as torchrun need."""

from .app import main

main()
