"""A choice as text to apply, one file per place it goes to; writes nothing, connects nowhere."""
