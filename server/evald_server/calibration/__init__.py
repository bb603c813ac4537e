"""Calibration of judges: labelled cases, the attack suite, figures and the calibration card."""
