// A Go file may declare a function without a body, as Yield is, only beside a file in assembly.
