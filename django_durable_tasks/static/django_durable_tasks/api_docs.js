// Shows the OpenAPI document of the script's data-schema attribute.
"use strict";
window.SwaggerUIBundle({
  url: document.currentScript.dataset.schema,
  dom_id: "#swagger-ui",
  deepLinking: true,
  persistAuthorization: false,
  tryItOutEnabled: true,
});
