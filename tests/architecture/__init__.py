"""Rules of the code as tests. Each parses syntax trees and is tested with a violation that it must
find.
"""
