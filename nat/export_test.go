package nat

// TranslatePlainGo is TranslatePlain by the twin in Go.
var TranslatePlainGo = translatePlainGo
