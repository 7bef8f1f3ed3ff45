"""Whether plugins keep their promises, and whether the machine is fit to measure on."""
