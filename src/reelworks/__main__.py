"""`python -m reelworks`, the form that torchrun starts."""

from reelworks.cli.main import main

if __name__ == "__main__":
    main()
