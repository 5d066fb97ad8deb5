"""`python -m webhook.cli` is the command `vramwarden`."""

from webhook.cli.main import main

main()
