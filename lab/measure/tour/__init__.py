"""The measuring tour: what the laptop said, held against the devices that this process has."""
