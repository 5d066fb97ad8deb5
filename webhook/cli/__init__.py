"""The command `vramwarden`: one file per subcommand, each a thin layer over library calls."""
