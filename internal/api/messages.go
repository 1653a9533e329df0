package api

import (
	"maps"

	"golang.org/x/text/language"

	"validator-gw/internal/validate"
	"validator-gw/internal/verdict"
)

// lang is a language that messages are written in.
type lang string

const (
	english lang = "en"
	spanish lang = "es"
)

// langs are the languages, the default first; matcher answers in their order.
var (
	langs   = []lang{english, spanish}
	matcher = language.NewMatcher([]language.Tag{language.English, language.Spanish})
	// contentLanguage is the header of each, as all responses share it.
	contentLanguage = map[lang][]string{english: {string(english)}, spanish: {string(spanish)}}
)

// maxAcceptLanguage bounds the header that is parsed; a browser's has some dozens of bytes.
const maxAcceptLanguage = 256

// preferred returns the language to answer an Accept-Language header in.
func preferred(header string) lang {
	if header == "" || len(header) > maxAcceptLanguage {
		return english
	}
	tags, _, err := language.ParseAcceptLanguage(header)
	if err != nil {
		return english
	}
	_, i, _ := matcher.Match(tags...)
	return langs[i]
}

// message returns the words for the person at the form: what is the matter and what to do, in one or two sentences.
// The caller's flow decides what happens, so no message says that the person may or may not go on.
func message(l lang, n validate.Answer) string {
	texts := messages[l]
	text, ok := texts.by[n.Status][n.Reason]
	if !ok {
		text = texts.otherwise[n.Status]
	}
	if n.Decision == validate.Warn && n.Status != verdict.Invalid {
		text = texts.by[verdict.Risky][verdict.Disposable] // what an address that is not refused is warned about
	}
	if n.Suggestion == "" {
		return text
	}
	suggestion := texts.didYouMean[0] + n.Suggestion + texts.didYouMean[1]
	if n.Status == verdict.Invalid || n.Decision == validate.Reject {
		return text + " " + suggestion
	}
	return suggestion
}

// language's texts. Every reason has one under each status that it can come with; a test lists what is missing.
type texts struct {
	by         map[verdict.Status]map[verdict.Reason]string
	otherwise  map[verdict.Status]string // for reasons that are newer than this table
	didYouMean [2]string                 // around the suggestion
}

var messages = map[lang]texts{
	english: {
		didYouMean: [2]string{"Did you mean ", "?"},
		otherwise: map[verdict.Status]string{
			verdict.Valid:       enValid,
			verdict.Invalid:     "This address can't receive mail. Please check the spelling.",
			verdict.Risky:       enRisky,
			verdict.NeedsReview: enPending,
			verdict.Unresolved:  enUnresolved,
		},
		by: map[verdict.Status]map[verdict.Reason]string{
			verdict.Valid: each(enValid, verdict.ValidReasons),
			verdict.Risky: with(each(enRisky, verdict.RiskyReasons), map[verdict.Reason]string{
				verdict.CatchAll:             enCatchAll,
				verdict.RoleCatchAll:         enCatchAll,
				verdict.ProviderUnverifiable: enCatchAll,
				verdict.Disposable:           enDisposable,
				verdict.DisposableLongTerm:   enDisposable,
				verdict.LocalDenylist:        enUnwanted,
				verdict.Toxic:                enUnwanted,
				verdict.Spamtrap:             enUnwanted,
				verdict.SpamtrapSuspected:    enUnwanted,
				verdict.AbuseComplainer:      enUnwanted,
				verdict.GloballySuppressed:   enUnwanted,
				verdict.MailboxFull: "This mailbox seems to be full, so our messages may not arrive. " +
					"Please make room in it or use another address.",
				verdict.Role:            "This looks like the address of a team. Please use your own if you can.",
				verdict.NoReply:         "Nobody seems to read mail at this address. Please use one that you read.",
				verdict.MXForward:       "This address only seems to forward mail. Please use one that you will keep.",
				verdict.SubdomainMailer: "This address seems to be for sending only. Please use one that you read.",
			}),
			verdict.NeedsReview: review(enPending, enMailbox),
			verdict.Unresolved:  unresolved(enUnresolved),
			verdict.Invalid: {
				verdict.MailboxNotFound: "We could not find this mailbox. Please check the spelling.",
				verdict.MailboxDisabled: "This mailbox is closed. Please use another address.",
				verdict.SyntaxInvalid:   "This is not the form of an address. Please check the spelling.",
				verdict.ProviderRuleViolation: "Your mail provider has no addresses of this form. " +
					"Please check the part before the @.",
				verdict.TypoSuspected:     "This address seems to be misspelled. Please check it.",
				verdict.DomainNotFound:    "The part after the @ does not exist. Please check the spelling.",
				verdict.NoMX:              "The part after the @ can't receive mail. Please check the spelling.",
				verdict.UnroutableMX:      "The part after the @ can't receive mail. Please check the spelling.",
				verdict.DoesNotAcceptMail: "The part after the @ can't receive mail. Please check the spelling.",
				verdict.Empty:             "Please enter your email address.",
				verdict.Encoding:          "This address has characters that we can't read. Please type it again.",
				verdict.ControlChar:       "This address has a hidden character. Please type it again instead of pasting it.",
				verdict.InvisibleChar:     "This address has a hidden character. Please type it again instead of pasting it.",
				verdict.BidiControl:       "This address has a hidden character. Please type it again instead of pasting it.",
				verdict.WhitespaceInside:  "An address has no spaces inside. Please remove them.",
				verdict.MissingAt:         "An address needs an @, as in name@example.com.",
				verdict.MultipleAt:        "An address has one @ only. Please check the spelling.",
				verdict.MultipleAddresses: "Please enter one address only.",
				verdict.LocalEmpty:        "The part before the @ is missing.",
				verdict.LocalDot:          "The part before the @ has a dot too many: none at its ends, no two in a row.",
				verdict.LocalChar:         "The part before the @ has a character that addresses don't have.",
				verdict.LocalTooLong:      "The part before the @ is too long. Please check the spelling.",
				verdict.QuotedLocal:       "We can't take addresses in quotation marks. Please use another one.",
				verdict.Comment:           "Please enter the address alone, without what is in brackets.",
				verdict.DisplayName:       "Please enter the address alone, without the name.",
				verdict.Wrapped:           "Please enter the address alone, without the marks around it.",
				verdict.URIScheme:         "Please enter the address alone, without what comes before it.",
				verdict.TrailingPunct:     "There is a punctuation mark after the address. Please remove it.",
				verdict.PercentEncoded:    "An address needs an @. This one has %40 in its place.",
				verdict.SmartPunctuation: "There is a typographic quotation mark or dash in this address. " +
					"Please type a plain ' or - instead.",
				verdict.ConfusableLocal: "The part before the @ has letters that look like others. " +
					"Please type it again on your usual keyboard.",
				verdict.FullwidthAt:    "The @ is a wide one. Please type it again as @.",
				verdict.FullwidthLocal: "The part before the @ has wide letters. Please type it again in usual ones.",
				verdict.DomainEmpty:    "The part after the @ is missing.",
				verdict.DomainNoDot:    "The part after the @ is not complete, as in name@example.com.",
				verdict.DomainDot:      "The part after the @ has a dot too many.",
				verdict.DomainHyphen:   "The part after the @ has a hyphen in a wrong place.",
				verdict.DomainChar:     "The part after the @ has a character that addresses don't have.",
				verdict.LabelTooLong:   "The part after the @ is too long. Please check the spelling.",
				verdict.DomainTooLong:  "The part after the @ is too long. Please check the spelling.",
				verdict.AddressTooLong: "This address is too long. Please check the spelling.",
				verdict.IPLiteral:      "We can't take addresses with numbers in place of a name after the @.",
				verdict.TLDNumeric:     "We can't take addresses with numbers in place of a name after the @.",
				verdict.TLDUnknown:     "The ending of this address does not exist. Please check what comes after the last dot.",
				verdict.ReservedDomain: "The part after the @ can't receive mail. Please use another address.",
				verdict.IDNInvalid:     "The part after the @ is not spelled right. Please check it.",
			},
		},
	},
	spanish: {
		didYouMean: [2]string{"¿Quisiste decir ", "?"},
		otherwise: map[verdict.Status]string{
			verdict.Valid:       esValid,
			verdict.Invalid:     "Esta dirección no puede recibir correo. Revisa cómo está escrita.",
			verdict.Risky:       esRisky,
			verdict.NeedsReview: esPending,
			verdict.Unresolved:  esUnresolved,
		},
		by: map[verdict.Status]map[verdict.Reason]string{
			verdict.Valid: each(esValid, verdict.ValidReasons),
			verdict.Risky: with(each(esRisky, verdict.RiskyReasons), map[verdict.Reason]string{
				verdict.CatchAll:             esCatchAll,
				verdict.RoleCatchAll:         esCatchAll,
				verdict.ProviderUnverifiable: esCatchAll,
				verdict.Disposable:           esDisposable,
				verdict.DisposableLongTerm:   esDisposable,
				verdict.LocalDenylist:        esUnwanted,
				verdict.Toxic:                esUnwanted,
				verdict.Spamtrap:             esUnwanted,
				verdict.SpamtrapSuspected:    esUnwanted,
				verdict.AbuseComplainer:      esUnwanted,
				verdict.GloballySuppressed:   esUnwanted,
				verdict.MailboxFull: "Este buzón parece estar lleno y puede que nuestros mensajes no lleguen. " +
					"Haz sitio en él o usa otra dirección.",
				verdict.Role:            "Parece la dirección de un equipo. Si puedes, usa la tuya.",
				verdict.NoReply:         "Parece que nadie lee el correo de esta dirección. Usa una que leas.",
				verdict.MXForward:       "Parece que esta dirección solo reenvía el correo. Usa una que vayas a conservar.",
				verdict.SubdomainMailer: "Parece que esta dirección es solo para enviar. Usa una que leas.",
			}),
			verdict.NeedsReview: review(esPending, esMailbox),
			verdict.Unresolved:  unresolved(esUnresolved),
			verdict.Invalid: {
				verdict.MailboxNotFound: "No encontramos este buzón. Revisa cómo está escrita la dirección.",
				verdict.MailboxDisabled: "Este buzón está cerrado. Usa otra dirección.",
				verdict.SyntaxInvalid:   "Esto no tiene la forma de una dirección. Revisa cómo está escrita.",
				verdict.ProviderRuleViolation: "Tu proveedor de correo no tiene direcciones de esta forma. " +
					"Revisa la parte antes de la @.",
				verdict.TypoSuspected:     "Parece que la dirección tiene una errata. Revísala.",
				verdict.DomainNotFound:    "La parte después de la @ no existe. Revisa cómo está escrita.",
				verdict.NoMX:              "La parte después de la @ no puede recibir correo. Revisa cómo está escrita.",
				verdict.UnroutableMX:      "La parte después de la @ no puede recibir correo. Revisa cómo está escrita.",
				verdict.DoesNotAcceptMail: "La parte después de la @ no puede recibir correo. Revisa cómo está escrita.",
				verdict.Empty:             "Escribe tu dirección de correo.",
				verdict.Encoding:          "La dirección tiene caracteres que no podemos leer. Escríbela otra vez.",
				verdict.ControlChar:       "La dirección tiene un carácter oculto. Escríbela otra vez en lugar de pegarla.",
				verdict.InvisibleChar:     "La dirección tiene un carácter oculto. Escríbela otra vez en lugar de pegarla.",
				verdict.BidiControl:       "La dirección tiene un carácter oculto. Escríbela otra vez en lugar de pegarla.",
				verdict.WhitespaceInside:  "Una dirección no lleva espacios dentro. Quítalos.",
				verdict.MissingAt:         "A la dirección le falta la @, como en nombre@example.com.",
				verdict.MultipleAt:        "Una dirección lleva una sola @. Revisa cómo está escrita.",
				verdict.MultipleAddresses: "Escribe una sola dirección.",
				verdict.LocalEmpty:        "Falta la parte antes de la @.",
				verdict.LocalDot:          "A la parte antes de la @ le sobra un punto: ni en los extremos ni dos seguidos.",
				verdict.LocalChar:         "La parte antes de la @ tiene un carácter que las direcciones no llevan.",
				verdict.LocalTooLong:      "La parte antes de la @ es demasiado larga. Revisa cómo está escrita.",
				verdict.QuotedLocal:       "No podemos aceptar direcciones entre comillas. Usa otra.",
				verdict.Comment:           "Escribe solo la dirección, sin lo que va entre paréntesis.",
				verdict.DisplayName:       "Escribe solo la dirección, sin el nombre.",
				verdict.Wrapped:           "Escribe solo la dirección, sin los signos que la rodean.",
				verdict.URIScheme:         "Escribe solo la dirección, sin lo que va delante.",
				verdict.TrailingPunct:     "Hay un signo de puntuación después de la dirección. Quítalo.",
				verdict.PercentEncoded:    "A la dirección le falta la @: lleva %40 en su lugar.",
				verdict.SmartPunctuation: "La dirección tiene una comilla o una raya tipográfica. " +
					"Escribe en su lugar ' o - normales.",
				verdict.ConfusableLocal: "La parte antes de la @ tiene letras que se parecen a otras. " +
					"Escríbela otra vez con tu teclado habitual.",
				verdict.FullwidthAt:    "La @ es de ancho doble. Escríbela otra vez como @.",
				verdict.FullwidthLocal: "La parte antes de la @ tiene letras de ancho doble. Escríbela con letras normales.",
				verdict.DomainEmpty:    "Falta la parte después de la @.",
				verdict.DomainNoDot:    "La parte después de la @ no está completa, como en nombre@example.com.",
				verdict.DomainDot:      "A la parte después de la @ le sobra un punto.",
				verdict.DomainHyphen:   "La parte después de la @ tiene un guion donde no puede ir.",
				verdict.DomainChar:     "La parte después de la @ tiene un carácter que las direcciones no llevan.",
				verdict.LabelTooLong:   "La parte después de la @ es demasiado larga. Revisa cómo está escrita.",
				verdict.DomainTooLong:  "La parte después de la @ es demasiado larga. Revisa cómo está escrita.",
				verdict.AddressTooLong: "La dirección es demasiado larga. Revisa cómo está escrita.",
				verdict.IPLiteral:      "No podemos aceptar direcciones con números en lugar de un nombre después de la @.",
				verdict.TLDNumeric:     "No podemos aceptar direcciones con números en lugar de un nombre después de la @.",
				verdict.TLDUnknown:     "El final de la dirección no existe. Revisa lo que va después del último punto.",
				verdict.ReservedDomain: "La parte después de la @ no puede recibir correo. Usa otra dirección.",
				verdict.IDNInvalid:     "La parte después de la @ no está bien escrita. Revísala.",
			},
		},
	},
}

const (
	enValid      = "This address looks good."
	enRisky      = "This address may not receive our messages. Please make sure that it is spelled right."
	enCatchAll   = "This address looks fine. Please make sure that it is spelled right."
	enDisposable = "This looks like a temporary address. Please use one that you will keep."
	enUnwanted   = "We can't use this address. Please give us another one."
	enPending    = "We could not check this address just now. We keep trying; there is nothing you need to do."
	enMailbox    = "Your mail provider did not give us an answer yet. We keep trying; there is nothing you need to do."
	enUnresolved = "We could not find out whether this address works. Please make sure that it is spelled right."

	esValid      = "La dirección parece correcta."
	esRisky      = "Puede que nuestros mensajes no lleguen a esta dirección. Revisa que esté bien escrita."
	esCatchAll   = "La dirección parece correcta. Revisa que esté bien escrita."
	esDisposable = "Parece una dirección temporal. Usa una que vayas a conservar."
	esUnwanted   = "No podemos usar esta dirección. Danos otra, por favor."
	esPending    = "Ahora mismo no pudimos comprobar la dirección. Seguimos intentándolo; no tienes que hacer nada."
	esMailbox    = "Tu proveedor de correo aún no nos ha respondido. Seguimos intentándolo; no tienes que hacer nada."
	esUnresolved = "No pudimos saber si la dirección funciona. Revisa que esté bien escrita."
)

// each returns one text for all of the reasons.
func each(text string, reasons []verdict.Reason) map[verdict.Reason]string {
	m := make(map[verdict.Reason]string)
	for _, r := range reasons {
		m[r] = text
	}
	return m
}

// with returns the texts of m, and in their place those of other where it has one.
func with(m, other map[verdict.Reason]string) map[verdict.Reason]string {
	maps.Copy(m, other)
	return m
}

// review returns the texts of the reasons of a review: whose side it is on is all that a person can use. An error of the
// verifier is not the mailbox's, though it goes up the same ladder.
func review(pending, mailbox string) map[verdict.Reason]string {
	m := with(each(pending, verdict.ReviewReasons), each(mailbox, verdict.MailboxReasons))
	m[verdict.VerifierError] = pending
	return m
}

// unresolved returns the text of a review that ended without an answer, whatever the last reason was, and of an address
// that must not be checked.
func unresolved(text string) map[verdict.Reason]string {
	return with(each(text, verdict.ReviewReasons), each(text, []verdict.Reason{
		verdict.ClaimedByPerson, verdict.ReviewExpired, verdict.ReviewPoisoned, verdict.AddressUnreadable,
	}))
}
