"""An example of a FedVeil plugin: a strategy and a calibration."""
