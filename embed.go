// Package validatorgw holds the API's document, openapi.yaml, for the parts that serve it and test against it.
// It is at the root of the repository because the document is, and go:embed does not reach upwards.
package validatorgw

import _ "embed"

// OpenAPI is openapi.yaml. Don't change it.
//
//go:embed openapi.yaml
var OpenAPI []byte
