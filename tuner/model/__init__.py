"""What is learnt from measurements."""
