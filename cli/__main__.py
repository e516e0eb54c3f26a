"""`python -m ncclean_cli`, which launchers such as torchrun want."""

from .app import main

main()
