// Yield has no body. The compiler allows that only in a package that has an assembly file.
