"""`python -m specmodel` opens the command line."""

from specmodel.cli.app import main

if __name__ == "__main__":
    main()
