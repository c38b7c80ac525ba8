"""Measurements and champions that runs share, in packs of files."""
