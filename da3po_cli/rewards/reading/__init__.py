"""From a response to the text of its answer in one spelling, and to that answer's outer structure."""
