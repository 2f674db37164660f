"""python -m walproof."""

from walproof.cli.main import main

if __name__ == "__main__":
    main()
