"""Tools for those who carry on; not part of walproof."""
