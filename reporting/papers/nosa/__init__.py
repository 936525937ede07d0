"""The page of NOSA."""
