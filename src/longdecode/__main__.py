"""``python -m longdecode``: the command without its script."""

from longdecode.cli import main

main()
