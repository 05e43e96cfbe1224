"""The packages here are installed by tests; pytest does not import them to look for doctests."""

collect_ignore_glob = ["pour-*"]
