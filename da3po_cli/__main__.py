"""`python -m da3po_cli`; under torchrun: `torchrun --nproc-per-node 8 -m da3po_cli train ...`."""

from da3po_cli.main import run

if __name__ == "__main__":
    run()
