"""The record directory: layout, codec, writer, reader, journal."""
