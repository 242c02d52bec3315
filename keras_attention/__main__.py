"""`python -m keras_attention` is the command `keras-attention`."""

import sys

from keras_attention.command import main

if __name__ == "__main__":
    sys.exit(main())
