"""What `walproof price` promises, measured; a figure of docs/ for each command."""
