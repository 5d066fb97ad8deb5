"""The command `vramwarden`: a file or folder per subcommand, thin layers over library calls."""
