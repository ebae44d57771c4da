package nat

// TranslatePlainGo is the Go twin of TranslatePlain.
var TranslatePlainGo = translatePlainGo
