"""Bytes, order and durability: the log under turnlog.

``FORMAT.md`` beside this file is the contract of what lies on disk.
"""
