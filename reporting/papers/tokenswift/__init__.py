"""The page of TokenSwift."""
