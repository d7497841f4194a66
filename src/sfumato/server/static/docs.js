// SPDX-License-Identifier: Apache-2.0
// The description of the API. What is tried there goes to this server alone, as whoever is signed in.
const box = document.getElementById("swagger");
window.SwaggerUIBundle({
  url: "/openapi.json",
  domNode: box,
  layout: "BaseLayout",
  validatorUrl: null,
  deepLinking: false,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  requestInterceptor: (request) => {
    if (new URL(request.url, location.href).origin !== location.origin) throw new Error("this page asks this server alone");
    request.headers["X-Form-Token"] = box.dataset.token;
    return request;
  },
});
