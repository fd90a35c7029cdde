"""`python -m reelworks`, the form that torchrun starts."""

from reelworks.commands.main import main

if __name__ == "__main__":
    main()
