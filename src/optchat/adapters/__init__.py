"""Translates. One host a module, each a codec; no rule of memory is decided here."""
