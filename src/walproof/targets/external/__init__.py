"""What all clusters that walproof did not start have in common: the target file, consent, commands, own database."""
