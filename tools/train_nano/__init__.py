"""Training code of the nano model; see README.md beside this file."""
