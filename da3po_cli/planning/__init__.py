"""What a run will take: parameters, memory by part, bytes moved, disk; and the layouts that fit. No torch here.

`shape` counts parameters, `state` the trainer's buffers (exact), `activations` and `engine` estimate the rest, `batch`
does the arithmetic of a step, `estimate` puts one layout together, `layouts` ranks the alternatives, `show` prints.
"""
