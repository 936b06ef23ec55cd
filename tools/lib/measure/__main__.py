# SPDX-License-Identifier: MIT
import sys

from measure.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
