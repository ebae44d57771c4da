// Command static is a placeholder for the gateway in tests that need a binary of an architecture,
// but none of its functions.
package main

func main() {}
