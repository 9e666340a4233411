"""Rules of the code as tests. Each reads syntax trees and is shown a violation that it must find."""
