// From a JSON Schema to a form, and from the form to a value. What no field fits is asked for as JSON.

import { el } from "./dom.js";
import { parse, whole, write } from "./link.js";

const LONG_NAMES = /(message|text|code|prompt|content|query|answer|body|script|sql)$/i;

/** Follow `$ref`, and part "X or null" into X and whether null will do. */
function resolve(schema, root) {
  let at = schema ?? {};
  for (let i = 0; at.$ref && i < 20; i++) {
    const { $ref, ...own } = at;
    const target = $ref.split("/").slice(1).reduce((one, key) => one?.[key.replace(/~1/g, "/").replace(/~0/g, "~")], root);
    at = { ...(target ?? {}), ...own };
  }
  if (at.allOf?.length === 1) at = { ...resolve(at.allOf[0], root).schema, ...at, allOf: undefined };
  const options = at.anyOf ?? at.oneOf;
  const real = options?.filter((one) => one.type !== "null");
  if (options && real.length === 1 && real.length < options.length) {
    const { anyOf, oneOf, ...own } = at;
    return { schema: { ...resolve(real[0], root).schema, ...own }, nullable: true };
  }
  if (Array.isArray(at.type) && at.type.length === 2 && at.type.includes("null")) {
    return { schema: { ...at, type: at.type.find((one) => one !== "null") }, nullable: true };
  }
  return { schema: at, nullable: false };
}

const choicesOf = (schema) => {
  if (Array.isArray(schema.enum)) return schema.enum;
  return schema.type === "boolean" ? [true, false] : null;
};

const kindOf = (schema, name) => {
  if (choicesOf(schema)) return "choice";
  if (schema.type === "integer" || schema.type === "number") return "number";
  if (schema.type === "string") return LONG_NAMES.test(name) || schema.maxLength > 200 ? "long" : "text";
  return "json";
};

function hintOf(schema, kind) {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  const low = minimum ?? (exclusiveMinimum === undefined ? undefined : `> ${exclusiveMinimum}`);
  const high = maximum ?? (exclusiveMaximum === undefined ? undefined : `< ${exclusiveMaximum}`);
  if (kind === "json") return schema.type === "array" ? "JSON array" : schema.type === "object" ? "JSON object" : "JSON";
  if (low !== undefined && high !== undefined) return `${low} – ${high}`;
  if (low !== undefined) return `from ${low}`;
  if (high !== undefined) return `up to ${high}`;
  return "";
}

const asText = (value) => (value === undefined || value === null ? "" : typeof value === "object" ? write(value) : String(value));

/** One field: its element, how to read it, and how to say what is wrong with it. */
class Field {
  constructor(name, given, root, required, prefix) {
    const { schema, nullable } = resolve(given, root);
    this.name = name;
    this.schema = schema;
    this.required = required;
    this.nullable = nullable;
    this.optional = !required || nullable;
    this.kind = kindOf(schema, name);
    this.small = this.kind === "number";
    this.id = `${prefix}-${name}`;
    const label = schema.title && schema.title.toLowerCase().replace(/ /g, "_") !== name.toLowerCase() ? schema.title : name;
    const hint = hintOf(schema, this.kind);
    this.problem = el("p", { class: "problem", id: `${this.id}-problem`, hidden: true });
    const described = [schema.description && `${this.id}-about`, `${this.id}-problem`].filter(Boolean).join(" ");
    this.input = this.#make(described);
    this.element = el(this.kind === "choice" && this.radios ? "fieldset" : "div", { class: `field ${this.kind}` },
      el(this.radios ? "legend" : "label", { for: this.radios ? null : this.id },
        el("span", { class: "name" }, label.replace(/_/g, " ")),
        hint && el("span", { class: "hint" }, hint),
        !this.optional && el("span", { class: "needed", title: "required", "aria-hidden": "true" }, "•")),
      this.input,
      schema.description && el("p", { class: "about", id: `${this.id}-about`, hidden: this.small }, schema.description),
      this.problem);
  }

  #make(described) {
    const { schema, id, name } = this;
    const start = schema.default;
    const common = { id, name, "aria-describedby": described, required: !this.optional, autocomplete: "off" };
    const choices = choicesOf(schema);
    if (choices && choices.length <= 5 && choices.every((one) => String(one).length <= 12)) {
      const all = this.optional && (start === undefined || start === null) ? [undefined, ...choices] : choices;
      this.radios = all.map((one, at) => el("input", {
        type: "radio", name: id, id: `${id}-${at}`, value: at, required: !this.optional,
        checked: start === undefined || start === null ? (this.optional && at === 0 && one === undefined) : one === start,
      }));
      this.values = all;
      return el("div", { class: "choices" }, all.map((one, at) => el("label", { for: `${id}-${at}` }, this.radios[at],
        el("span", {}, one === undefined ? "–" : one === true ? "yes" : one === false ? "no" : String(one)))));
    }
    if (choices) {
      this.values = choices;
      return el("select", common,
        el("option", { value: "" }, this.optional ? "–" : "Choose…"),
        choices.map((one, at) => el("option", { value: at, selected: one === start }, String(one))));
    }
    if (this.kind === "number") {
      const whole = schema.type === "integer";
      const input = el("input", {
        ...common, type: "number", inputmode: whole ? "numeric" : "decimal", step: schema.multipleOf ?? (whole ? 1 : "any"),
        min: schema.minimum ?? (whole && schema.exclusiveMinimum !== undefined ? Number(schema.exclusiveMinimum) + 1 : null),
        max: schema.maximum ?? (whole && schema.exclusiveMaximum !== undefined ? Number(schema.exclusiveMaximum) - 1 : null),
        placeholder: this.optional && (start === undefined || start === null) ? "any" : null,
      });
      input.defaultValue = asText(start);
      return input;
    }
    if (this.kind === "text") {
      const input = el("input", {
        ...common, type: "text", spellcheck: "false", autocapitalize: "off",
        minlength: schema.minLength, maxlength: schema.maxLength, pattern: null,
      });
      input.defaultValue = asText(start);
      return input;
    }
    const area = el("textarea", { ...common, rows: this.kind === "long" ? 3 : 2, spellcheck: "false",
      class: this.kind === "json" ? "code" : null,
      placeholder: this.kind === "json" ? (schema.type === "array" ? "[ ]" : schema.type === "object" ? "{ }" : "null") : null });
    area.defaultValue = this.kind === "json" && start !== undefined && start !== null ? write(start) : asText(start);
    return area;
  }

  /** What was entered; undefined for nothing. Throws a text that says what is wrong. */
  read() {
    const { schema } = this;
    if (this.radios) {
      const chosen = this.radios.findIndex((one) => one.checked);
      if (chosen < 0 && !this.optional) throw new Error("Choose one.");
      return chosen < 0 ? undefined : this.values[chosen];
    }
    const text = this.input.value;
    if (this.input.validity?.badInput) throw new Error("This is not a number.");
    if (text === "" && this.kind !== "text" && this.kind !== "long") {
      if (!this.optional) throw new Error("Please fill this in.");
      return undefined;
    }
    if (text === "" && this.optional) return undefined;
    if (this.values) return this.values[Number(text)];
    if (this.kind === "number") {
      if (!this.input.validity.valid) throw new Error(this.input.validationMessage);
      const number = schema.type === "integer" ? whole(text) : Number(text);
      if (schema.exclusiveMinimum !== undefined && number <= schema.exclusiveMinimum) throw new Error(`More than ${schema.exclusiveMinimum}.`);
      if (schema.exclusiveMaximum !== undefined && number >= schema.exclusiveMaximum) throw new Error(`Less than ${schema.exclusiveMaximum}.`);
      return number;
    }
    if (this.kind === "json") {
      let value;
      try {
        value = parse(text);
      } catch {
        throw new Error(`This is not JSON${schema.type === "string" ? "" : ": text wants \"quotes\""}.`);
      }
      if (schema.type === "array" && !Array.isArray(value)) throw new Error("This must be an array: [ … ]");
      if (schema.type === "object" && (value === null || typeof value !== "object" || Array.isArray(value))) throw new Error("This must be an object: { … }");
      return value;
    }
    if (schema.minLength && text.length < schema.minLength) throw new Error(`At least ${schema.minLength} characters.`);
    return text;
  }

  tell(text) {
    this.problem.textContent = text;
    this.problem.hidden = !text;
    const inputs = this.radios ?? [this.input];
    for (const one of inputs) text ? one.setAttribute("aria-invalid", "true") : one.removeAttribute("aria-invalid");
  }

  focus() {
    (this.radios?.find((one) => one.checked) ?? this.radios?.[0] ?? this.input).focus();
    this.input.select?.();
  }
}

/** A form for the properties of an object's schema. */
export class SchemaForm {
  /** @param fields where the fields go; @param prefix of their ids; @param more asks for further members as JSON */
  constructor(fields, schema, prefix, { skip = [], more = false } = {}) {
    this.fixed = {};
    this.fields = [];
    const required = new Set(schema.required ?? []);
    for (const [name, given] of Object.entries(schema.properties ?? {})) {
      const { schema: own } = resolve(given, schema);
      if (own.const !== undefined) this.fixed[name] = own.const;
      else if (!skip.includes(name)) this.fields.push(new Field(name, given, schema, required.has(name), prefix));
    }
    if (more) {
      this.more = new Field("more", { type: "object", title: "more", description: "Further parameters." }, {}, false, prefix);
      this.fields.push(this.more);
    }
    // what says nothing of an action is asked for last, and folded away
    const aside = this.fields.filter((one) => one.name === "metadata");
    const main = this.fields.filter((one) => one.name !== "metadata");
    this.fields = [...main, ...aside];
    fields.replaceChildren(...main.map((one) => one.element));
    // what small fields are about is told one at a time, below them all: their columns are too narrow for it
    const told = main.filter((one) => one.small && one.schema.description);
    if (told.length) {
      const help = el("p", { class: "about help", "aria-hidden": "true" }, told[0].schema.description);
      fields.append(help);
      for (const one of told) one.input.addEventListener("focus", () => { help.textContent = one.schema.description; });
    }
    if (aside.length) fields.append(el("details", { class: "aside" }, el("summary", {}, "metadata"), aside.map((one) => one.element)));
  }

  /** The object; null if something is wrong, which its field then says. */
  read() {
    const value = { ...this.fixed };
    let first = null;
    for (const field of this.fields) {
      let problem = "";
      try {
        const entered = field.read();
        if (field === this.more) Object.assign(value, entered);
        else if (entered === undefined && field.required && field.nullable) value[field.name] = null;
        else if (entered !== undefined && !(field.name === "metadata" && Object.keys(entered).length === 0)) value[field.name] = entered;
      } catch (error) {
        problem = error.message;
        first ??= field;
      }
      field.tell(problem);
    }
    first?.focus();
    return first ? null : value;
  }

  /** Put the server's own words at the fields they are about. Returns what is about none of them. */
  refuse(errors) {
    const rest = [];
    for (const { loc = [], msg } of errors) {
      const field = this.fields.find((one) => loc.includes(one.name));
      if (field) field.tell(msg);
      else rest.push(msg);
    }
    return rest;
  }

  clear() {
    for (const field of this.fields) field.tell("");
  }

  /** Put the focus into the first field. Returns whether there is one. */
  focus() {
    const first = this.fields.find((one) => one.name !== "metadata");
    first?.focus();
    return Boolean(first);
  }
}
