"""The command `vramwarden`: a file or folder per subcommand, as thin layers over libraries."""
