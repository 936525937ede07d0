"""The page of LycheeDecode."""
