// Command static stands in for the gateway where a test needs a binary of an
// architecture and nothing of what it does.
package main

func main() {}
