# SPDX-License-Identifier: MIT
"""What tools/measure does: runs benchmark programs, keeps their figures in a file, compares two such files, publishes one.

A section (sections.py) is one kind of figures: how to get them, their tables, when two differ, their pictures.
"""
