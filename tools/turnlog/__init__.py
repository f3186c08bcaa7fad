"""The command line of turnlog; programs import ``engine``."""
