"""The command `check`: whether a cluster can take vramwarden, or what is installed works."""
